"""Operations on files and folders beneath the roots, on held descriptors."""
