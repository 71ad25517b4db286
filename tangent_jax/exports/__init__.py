"""Exports of a predictor: folders of weights or a program, with a model card, for other libraries."""
