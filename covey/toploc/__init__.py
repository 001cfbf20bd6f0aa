"""TOPLOC: activations to proof bytes, proof bytes and replayed activations to distances, distances to a judgement."""
