package main

func layout() (string, error)   { return "", nil }
func gradient() (string, error) { return "", nil }
