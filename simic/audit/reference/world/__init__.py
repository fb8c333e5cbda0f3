"""One host, its seeds and its environment, written a second time: plain torch in float64, one minibatch at a time."""
