"""How good a model is: reports with confidence intervals, comparisons, cross-validation and search.

`class_metrics` and `target_metrics` compute from labels and answers, where both are. `reports` has what `evaluate`
gives, `evaluated` the method itself, `validation` the loops over folds.
"""
