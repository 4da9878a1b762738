"""Checkpoints: the state of a training, in a file that is complete or not there."""

import os
import pickle

import jax
import numpy as np


def save(path, state):
    temporary = path.with_suffix(".part")
    with open(temporary, "wb") as f:
        pickle.dump(jax.tree.map(np.asarray, state), f)
        f.flush()
        os.fsync(f.fileno())
    temporary.rename(path)


def load(path):
    with open(path, "rb") as f:
        return pickle.load(f)
