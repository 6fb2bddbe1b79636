"""Published results as commands: `regard reproduce NAME` checks the data, trains, evaluates as the paper does and compares."""
