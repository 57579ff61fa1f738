//! Configs, models, optimizers, data, checkpoints and the training loop.
