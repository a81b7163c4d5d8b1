"""What a store keeps: roots, what they need, and the removal of the rest."""
