"""Operations on files, all beneath the roots, on held descriptors."""
