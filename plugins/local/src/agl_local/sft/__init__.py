"""Supervised fine-tuning (SFT) of a policy on chats: reading the data, training, the folder with its card."""
