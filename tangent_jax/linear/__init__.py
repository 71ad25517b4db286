"""The linear map J: its products, norms, factors and Gram matrices, and one solver of linear systems."""
