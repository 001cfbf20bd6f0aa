"""Lossless deltas between two versions of a policy's weights.

An Adam step moves every weight by about the learning rate. A bfloat16 value changes only if it moves by more than half
its unit in the last place, which depends on its exponent. The receiver knows the exponents of the parent. Each change
is therefore located by the number of unchanged values with the same exponent before it. Start with `image_codec`.
"""
