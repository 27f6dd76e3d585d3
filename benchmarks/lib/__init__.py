"""What the benchmark scripts share: rows and their records, the two measuring loops, and the pages made from them."""
