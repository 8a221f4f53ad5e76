"""Image-text models: two towers, and the losses and scores of pairs."""
