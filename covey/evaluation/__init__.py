"""Evaluation of models on fixed questions: formats of benchmarks, sampling, statistics and reports."""
