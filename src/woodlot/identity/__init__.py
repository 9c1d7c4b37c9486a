"""Who is who: certificates, the authority that issues them, identities, and receipts that they sign."""
