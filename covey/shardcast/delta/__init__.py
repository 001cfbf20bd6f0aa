"""Lossless deltas between two versions of a policy's weights.

An Adam step moves every weight by about the learning rate. A bfloat16 value changes if that exceeds half its unit in
the last place, which its exponent determines, and the receiver knows the parent's exponent. Changed positions are
therefore counted among the values with the same exponent only. Start with `image_codec`.
"""
