"""Files and machines: whole writes, journals, records, tensors, progress, processes of a job, placement on devices."""
