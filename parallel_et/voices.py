"""Ten voices that say a sentence: ``python -m parallel_et.voices --output voices``, or ``speak("voices")``."""

from parallel_et.prepare.speech import speak
from parallel_et.start import start

__all__ = ["speak"]

if __name__ == "__main__":
    start("voices")
