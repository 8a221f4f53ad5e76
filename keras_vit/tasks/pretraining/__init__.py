"""Objectives without labels: masked patches, masked autoencoders, image GPT and DINO."""
