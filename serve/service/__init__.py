"""An HTTP request becomes an answer: fields, bodies, limits, refusals, the open inference protocol. Knows no server."""
