"""The mathematics of randomised smoothing: noise, votes, bounds, estimates, sample sizes and the procedures that turn
votes into a label and a radius. No engine, no file, no network."""
