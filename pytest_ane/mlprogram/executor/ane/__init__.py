"""The arithmetic of the ANE from M4 on (h16+), operation by operation, as far as it is known.

`simulation.rules()` has a rule for each operation that is known, with its grade: recorded, fitted
or inferred. All else is unknown and computes as the program's types say. One file per family:

- `fp16`: how inputs are read, and results rounded;
- `accumulator`, `kernel`, `products`: sums of products in Q15.16: convolutions 1x1, linear, matmul;
- `integers`: 8-bit activations and weights, and scales after accumulation;
- `factors`, `patterns`: constant operands, prepared once; which of them are codes with a scale;
- `elementwise`: add, sub, mul;
- `tables`, `activations`: functions by look-up and interpolation;
- `compositions`: softplus and log-sum-exp, with the cliffs that follow;
- `simulation`: a program's operations bound to these rules, and counted by grade.
"""
