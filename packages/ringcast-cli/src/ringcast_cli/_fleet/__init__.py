"""Commands on workers, services and agents, and what is known of them."""
