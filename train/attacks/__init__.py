"""The inner maximisation of Algorithm 1 and what it leaves: norm balls, projected gradient ascent, the losses it
climbs, AutoAttack, and accuracy under attack."""
