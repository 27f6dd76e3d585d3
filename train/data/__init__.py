"""Files become batches: data sets as uint8 images with a digest, read from memory or from disk, shuffled, augmented and
put on the device."""
