#!/bin/sh
# Compiles this package, and none that it depends on, with the model checker's locks: what `make test`
# has built of the others is used as it is.
exec "$@" --cfg shuttle
