"""Split search as an array program: sorts, running sums and gathers over all nodes of a level at once.

The same text runs on NumPy and, on a graphics card, on CuPy. A few steps dominate there and are CUDA kernels; the NumPy
text of each stands beside it. Forests are the same to the bit as those of ``woodlot.trees.kernels``: scores come from
the same whole numbers by the same operations, and ties go the same way.

One level::

    pairs       (node, candidate feature), twice where missing values could go left
    keys        pair | code | payload, one for every row of every pair             sorted
    run         running sums of weights and labels over the sorted keys
    top, at     best score of every pair, and the key behind which it cuts
    choice      best pair of every node
    flags       which rows go left
    rows        moved: a stable partition by running sums of the flags
"""
