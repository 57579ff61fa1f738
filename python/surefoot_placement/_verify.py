"""Which copies are verified, as `docs/transfer.md` specifies. Needs no PyTorch."""

MODES = ("off", "first", "sample", "always")
SAMPLE_ONE_IN = 64


class VerificationTracker:
    """Records what was verified, and decides what has to be.

    `role` is "weight" (the parameters, buffers and optimizer state of a module) or "batch"; `strategy` one of
    :data:`surefoot_placement._strategy.ALL`.
    """

    def __init__(self, mode: str):
        self.mode = mode
        self.seen_weights: set[str] = set()
        self.seen_batches: set[tuple[str, str]] = set()
        self.batches: dict[str, int] = {}
        self.distrusts = False

    def begin(self, name: str, role: str) -> bool:
        """Called when a transfer begins; returns whether `sample` selects it: the first of each field of a batch, and then one in 64."""
        if self.mode != "sample" or role != "batch":
            return False
        number = self.batches.get(name, 0)
        self.batches[name] = number + 1
        return number % SAMPLE_ONE_IN == 0

    def wants(self, sampled: bool, name: str, role: str, strategy: str) -> bool:
        """Whether a copy by this strategy has to be verified."""
        if self.mode in ("off", "always"):
            return self.mode == "always"
        if self.distrusts:
            return True
        if role == "weight":
            return name not in self.seen_weights
        return (name, strategy) not in self.seen_batches if self.mode == "first" else sampled

    def passed(self, name: str, role: str, strategy: str) -> None:
        """A copy was verified and is correct."""
        if self.mode in ("first", "sample") and role == "weight":
            self.seen_weights.add(name)
        elif self.mode == "first":
            self.seen_batches.add((name, strategy))

    def distrust(self) -> None:
        """A copy was damaged: from now on every mode except `off` verifies everything."""
        self.distrusts = True
