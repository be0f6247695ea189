"""What node_fit takes from scikit-learn, which ships few hints."""
