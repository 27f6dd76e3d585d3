"""The inner loop of Algorithm 1: one stage trains one member and its beta on the robust loss."""
