"""One linear map J, with its products, norms, factors and Gram matrices, and one solver of linear systems."""
