"""Folders at URLs: reads, writes, snapshots and mirrors."""
