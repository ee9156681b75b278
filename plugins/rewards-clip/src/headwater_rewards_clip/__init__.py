"""CLIP rewards for Headwater: HPSv2.1, PickScore, CLIPScore and the aesthetic predictor.

`preprocessing`, `scores` and `aesthetic` hold the functions of tensors, `architecture` and
`conversion` the sizes and names of checkpoints, `weights` their files, `tokens` the texts.
"""
