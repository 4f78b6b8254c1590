"""A test-bed: three toy houses in the public formats, with the oddities of real files, in half a second."""
