"""The running transformer (PyTorch): operations with hand-derived gradients, attention, blocks, stacks, training.

    ops/        one file per operation: forward, backward, and the pair joined to autograd
    attention/  scaled dot products (naive, composed, tiled, fused), masks, heads, latent attention
    layers.py   parameters: modules that hold weights and call the operations
    blocks/     sub-layers with their norms; encoder and decoder blocks
    stacks/     encoder-decoder, decoder-only, encoder-only
    training/   data, schedules, loops, checkpoints

Imports PyTorch, so nothing on the planning side imports this room.
"""
