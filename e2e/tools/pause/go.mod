module coxswain.dev/pause

go 1.26
