"""The part of the build that pyproject.toml cannot say: a kernel in C, left out where there is no compiler."""

import os

from setuptools import Extension, setup

UNIX = os.name != "nt"

setup(
    ext_modules=[
        Extension(
            "fedveil.core._kernel",
            ["src/fedveil/core/kernel.c"],
            extra_compile_args=["-O3", "-ffast-math"] if UNIX else [],  # not for linking: denormals would be lost
            libraries=["m"] if UNIX else [],  # glibc adds its vectorised functions to it
            optional=True,
        )
    ]
)
