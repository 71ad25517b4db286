"""Reports: the paper's claims and published figures, our findings beside them, and the page of influence."""
