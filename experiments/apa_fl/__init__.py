"""APA-FL beside the same run in the clear: seven attacks on two data sets."""
