"""One thread everywhere: the models are small, and sums must not depend on how many cores are free."""

import torch

torch.set_num_threads(1)
