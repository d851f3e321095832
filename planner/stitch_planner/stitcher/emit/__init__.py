"""The last step of the stitcher: kernel IR to source text, one subpackage a target."""
