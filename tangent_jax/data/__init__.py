"""Images: where they come from, how they are decoded, which shard they belong to."""
