"""Text-rendering accuracy: does the image show the text that its prompt quotes?"""

from headwater_rewards_ocr.rewards import Ocr

__all__ = ["Ocr"]
