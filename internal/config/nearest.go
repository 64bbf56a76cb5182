package config

import "strings"

// nearest returns the candidate that a misspelt path most likely means. A key
// that is right, or almost, but stands in the wrong section counts as one
// mistake more.
func nearest(path string, candidates []string) string {
	best, least := "", -1
	for _, c := range candidates {
		d := editDistance(path, c)
		if leaf := editDistance(leafOf(path), leafOf(c)); leaf <= 1 && sectionOf(c) != sectionOf(path) {
			d = min(d, 1+leaf)
		}
		if least < 0 || d < least {
			best, least = c, d
		}
	}
	return best
}

// editDistance counts the insertions, deletions, substitutions and swaps of
// neighbours that make b of a (optimal string alignment). Letters of either
// case are equal.
func editDistance(a, b string) int {
	s, t := []rune(strings.ToLower(a)), []rune(strings.ToLower(b))
	if len(s) > 200 { // nobody's spelling of a key
		s = s[:200]
	}
	before, last, row := make([]int, len(t)+1), make([]int, len(t)+1), make([]int, len(t)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(s); i++ {
		row[0] = i
		for j := 1; j <= len(t); j++ {
			cost := 1
			if s[i-1] == t[j-1] {
				cost = 0
			}
			row[j] = min(row[j-1]+1, last[j]+1, last[j-1]+cost)
			if i > 1 && j > 1 && s[i-1] == t[j-2] && s[i-2] == t[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(t)]
}
