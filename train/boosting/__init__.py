"""The outer loop of Algorithm 1: boosters train one stage after the other and settle the betas of the ensemble."""
