"""Reports: the paper's claims and published figures beside our findings, and the page of influence."""
