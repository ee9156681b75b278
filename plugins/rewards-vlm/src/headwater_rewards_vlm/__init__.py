"""Vision-language rewards for Headwater: ImageReward, HPSv3, UnifiedReward, VLM judges, GenEval.

`preprocessing` holds the functions of pixels, `blip` and `qwen` the networks and the names of their
checkpoints' weights, `weights` their files, `verdicts` the reading of a judge's words.
"""
