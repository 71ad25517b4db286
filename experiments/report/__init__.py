"""Reports: the paper's claims and published figures, our findings beside them, and the pages that show them."""
