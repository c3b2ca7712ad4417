"""Pure readers for what is inside a CUDA-and-torch wheel: nothing read here is run or trusted."""
